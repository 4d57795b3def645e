"""Schema of studies/buckets/params.yaml."""

from typing import Self

from pydantic import model_validator
from study_settings import InterleavedAtOneSize

from minitrain.core.schema import PositiveFloat, Problem, Some


class Buckets(InterleavedAtOneSize):
    bucket_caps_mb: Some[PositiveFloat | None]

    @model_validator(mode="after")
    def _has_default(self) -> Self:
        if None not in self.bucket_caps_mb:
            allowed = "a list with null, torch's default, in it"
            raise Problem("bucket_caps_mb", self.bucket_caps_mb, allowed)
        return self
