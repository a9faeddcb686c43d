"""The embedded target's tokenizer: byte-level BPE, five special tokens and a chat template with generation marks.

In: texts. Out: a `PreTrainedTokenizerFast` that loads with `AutoTokenizer` and no network. The assistant's turn ends
with `<|end|>`, which is eos and is supervised; `<|mask|>` is the drafter's mask token and stands in no text.
"""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, MASK, USER, ASSISTANT, END = "<|pad|>", "<|mask|>", "<|user|>", "<|assistant|>", "<|end|>"
PAD_ID, MASK_ID, USER_ID, ASSISTANT_ID, END_ID = range(5)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|user|>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<|assistant|>"
    "{% generation %}{{ message['content'] }}<|end|>{% endgeneration %}"
    "{% else %}{{ raise_exception('roles are user and assistant') }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Learn the merges; ids 0..4 are the special tokens in the order above."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, MASK, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        mask_token=MASK,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def prompt_ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """What the chat template gives for one user turn with the generation prompt added."""
    return [USER_ID, *tokenizer.encode(text, add_special_tokens=False), ASSISTANT_ID]
