"""Why a drafter is accepted less than it was trained to be."""
