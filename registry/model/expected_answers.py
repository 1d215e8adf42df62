"""Expected answers of engines with an adapter, before its name is bound. Pure."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from registry.model.stored import Part

TokenId = Annotated[int, Field(ge=0, le=(1 << 31) - 1)]
Logprob = Annotated[float, Field(ge=-1000, le=0, allow_inf_nan=False)]
MAX_EXPECTED_PROMPTS, MAX_EXPECTED_PROMPT_TOKENS, MAX_EXPECTED_TOKENS = 4, 64, 16
# By measurement, see docs/decisions/0043-expected-answers.md.
EXPECT_TOLERANCE = 0.2


class ExpectedAnswer(Part):
    """Answer of an engine to one prompt with the adapter: the likeliest tokens, one by one, by their numbers.

    `logprobs` are natural logarithms, one of each token; empty: only the tokens are compared.
    """

    prompt: Annotated[list[TokenId], Field(min_length=1, max_length=MAX_EXPECTED_PROMPT_TOKENS)] = Field(
        title="Prompt, as numbers of tokens", description="write 1 to 64 numbers of tokens, e.g. [1, 450, 4996]"
    )
    tokens: Annotated[list[TokenId], Field(min_length=1, max_length=MAX_EXPECTED_TOKENS)] = Field(
        title="Likeliest next tokens, one by one", description="write 1 to 16 numbers of tokens, e.g. [263, 29871]"
    )
    logprobs: Annotated[list[Logprob], Field(max_length=MAX_EXPECTED_TOKENS)] = Field(
        title="Logarithm of the probability of each; none: only tokens are compared",
        default=[],
        description="write one number from -1000 to 0 for each of the tokens, or leave them out",
    )

    @model_validator(mode="after")
    def _logprobs_go_with_tokens(self) -> Self:
        if self.logprobs and len(self.logprobs) != len(self.tokens):
            raise ValueError(f"{len(self.logprobs)} logprobs of {len(self.tokens)} tokens")
        return self


class Expect(Part):
    """Answers that engines have to give with an adapter before its name is bound, as its trainer saw it answer.

    `tolerance`: how far a logprob may be from the expected one, and below the likeliest token's.
    """

    answers: Annotated[list[ExpectedAnswer], Field(min_length=1, max_length=MAX_EXPECTED_PROMPTS)] = Field(
        title="Prompts with their answers",
        description="give 1 to 4 answers, each with a prompt, its tokens, and one logprob of each token or none",
    )
    tolerance: float = Field(
        title="Distance that a logprob may have from it",
        default=EXPECT_TOLERANCE,
        ge=0.0001,
        le=10,
        allow_inf_nan=False,
        description="use a number from 0.0001 to 10",
    )
