"""What can be typed behind `dflash-exp`: one file a verb."""
