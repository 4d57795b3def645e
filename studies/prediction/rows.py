"""Shared by the scripts of this study: its folder and settings."""

from pathlib import Path

from link_rate import LOOPBACK
from prediction_settings import Prediction
from setting import NO_SYNC, Setting, setting_of

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parents[1]


def all_settings(study: Prediction) -> tuple[list[Setting], list[Setting]]:
    """Return the settings, fitted and held out."""
    return [setting_of(r) for r in study.fit], [setting_of(r) for r in study.held_out]


def is_cabled(setting: Setting) -> bool:
    """Return true if the setting is between two hosts."""
    return setting.sync != NO_SYNC and setting.link != LOOPBACK
