"""The five characters of parallel debate, and the temperature each is sampled at (SPEC 3.10)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Persona:
    """How one seat is told to think."""

    name: str
    style: str
    temperature: float


PERSONAS = (
    Persona("Methodical Analyst", "You work step by step and check every step.", 0.6),
    Persona("Creative Problem-Solver", "You look for an approach the others will not think of.", 1.0),
    Persona("Devil's Advocate", "You doubt every claim and look for a counterexample.", 0.9),
    Persona("Synthesizer", "You combine the best parts of several views.", 1.0),
    Persona("First Principles Thinker", "You go back to definitions and build up from them.", 0.8),
)
