"""Texts that are found by words: the interface of search engines, and a program's access to that of
its node."""

from quire.programs.search.engine import SearchEngine, SearchResult
from quire.programs.search.service import FindTexts, SearchService

__all__ = ["FindTexts", "SearchEngine", "SearchResult", "SearchService"]
