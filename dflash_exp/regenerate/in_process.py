"""Rows rewritten by the model in this process, with transformers' own generate.

In: rows. Out: each once its batch is done. The batches are always the same rows, whatever was made before, and each
turn of a batch has a seed of its own: so what is drawn does not depend on stops. A stop is looked for at every token,
and gives up the batch that is under way.
"""

# B conversations of a batch, T padded tokens

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dflash_exp.data.regeneration import Regeneration
from dflash_exp.regenerate.rewriting import Failed, Reply, Rewriting, Row, drawn_seed

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class InProcess:
    """A target that is loaded, with its tokenizer."""

    def __init__(
        self,
        settings: Regeneration,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase",
        eos_ids: Sequence[int],
    ) -> None:
        from transformers import GenerationConfig

        self._settings, self._model, self._tokenizer, self._eos_ids = settings, model, tokenizer, list(eos_ids)
        self._most_tokens = model.config.get_text_config(decoder=True).max_position_embeddings
        drawn: dict[str, Any] = {"temperature": settings.temperature, "top_k": 0, "top_p": 1.0}
        # not the model's own, from which generate would take top_k, penalties and the like
        self._model.generation_config = GenerationConfig(
            max_new_tokens=settings.max_tokens,
            do_sample=settings.temperature > 0,
            eos_token_id=self._eos_ids or None,
            pad_token_id=self._pad_id(),
            **(drawn if settings.temperature > 0 else {}),
        )

    def rewrite(
        self, rows: Iterable[Row], take: Callable[[Rewriting | Failed], None], stop: Callable[[], bool]
    ) -> None:
        """As `Rewriter` has it."""
        each = iter(rows)
        while not stop() and (group := list(islice(each, self._settings.batch))):
            if all(row.is_kept for row in group):
                continue
            outcomes = self._rewritten(group, stop)
            if stop():
                return
            for outcome in outcomes:
                if not outcome.row.is_kept:
                    take(outcome)

    def _rewritten(self, group: Sequence[Row], stop: Callable[[], bool]) -> list[Rewriting | Failed]:
        outcomes: list[Rewriting | Failed] = []
        under_way = [Rewriting(row, self._settings.last_turn_only) for row in group]
        while under_way and not stop():
            fitting: list[tuple[Rewriting, list[int]]] = []
            for one in under_way:
                prompt = self._prompt(one)
                if isinstance(prompt, Failed):
                    outcomes.append(prompt)
                else:
                    fitting.append((one, prompt))
            for (one, _), reply in zip(fitting, self._replies(fitting, stop), strict=True):
                one.take(reply)
            outcomes += [one for one, _ in fitting if one.is_done]
            under_way = [one for one, _ in fitting if not one.is_done]
        return outcomes

    def _prompt(self, one: Rewriting) -> list[int] | Failed:
        """The tokens that the next turn follows; Failed where the template refuses them, or there is no room."""
        from jinja2 import TemplateError

        try:
            tokens: Any = self._tokenizer.apply_chat_template(
                one.asked(), add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except TemplateError as error:
            return Failed(one.row, f"the target's chat template refuses it: {error}")
        if len(tokens) + self._settings.max_tokens > self._most_tokens:
            return Failed(
                one.row,
                f"{len(tokens)} tokens before rewritten turn {one.n_done + 1} and regenerate.max_tokens="
                f"{self._settings.max_tokens} are more than the target's {self._most_tokens} positions",
            )
        return list(tokens)

    def _replies(self, asked: Sequence[tuple[Rewriting, list[int]]], stop: Callable[[], bool]) -> Iterator[Reply]:
        if not asked:
            return
        first = asked[0][0]
        seed = drawn_seed(self._settings.seed, first.row.number, first.n_done)
        answers_BT = self._generated([prompt for _, prompt in asked], seed, stop)
        for tokens in answers_BT.tolist():
            ends = [i for i, token in enumerate(tokens) if token in self._eos_ids]
            said = tokens[: ends[0] + 1] if ends else tokens
            content = self._tokenizer.decode(said, skip_special_tokens=True)
            yield Reply(str(content), None, "stop" if ends else "length", len(said))

    @torch.no_grad()
    def _generated(self, prompts: Sequence[list[int]], seed: int, stop: Callable[[], bool]) -> Tensor:
        """What follows each prompt, padded on the right."""
        from transformers import StoppingCriteriaList

        def asked_to_stop(tokens_BT: Tensor, _scores: object, **_others: object) -> Tensor:
            return torch.full((len(tokens_BT),), stop(), device=tokens_BT.device)

        width, pad, device = max(map(len, prompts)), self._pad_id(), self._model.device
        tokens_BT = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
        is_real_BT = torch.tensor(
            [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device
        )
        criteria: Any = [asked_to_stop]
        model: Any = self._model
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            whole_BT = model.generate(
                input_ids=tokens_BT, attention_mask=is_real_BT, stopping_criteria=StoppingCriteriaList(criteria)
            )
        return whole_BT[:, width:]

    def _pad_id(self) -> int:
        """Behind an end nothing is read, so any id will do."""
        return self._eos_ids[0] if self._eos_ids else 0
