"""The SDK, the higher-level interface for programs: contexts, conversations, tools, samplers,
constraints."""

from quire.programs.api.grammar import choice, json_schema, lark, regex
from quire.programs.inferlet import inferlet
from quire.programs.sdk.context import Context
from quire.programs.sdk.conversation import Answering, Conversation
from quire.programs.sdk.generation import Generated, Generation
from quire.programs.sdk.loops import Verified, ends, steps, verify
from quire.programs.sdk.mcp import mcp_tools
from quire.programs.sdk.page_span import Sees
from quire.programs.sdk.samplers import greedy, temperature
from quire.programs.sdk.stepping import ScoredStep
from quire.programs.sdk.streaming import StreamingWindow
from quire.programs.sdk.tools import Tool, Toolbox

__all__ = [
    "Answering",
    "Context",
    "Conversation",
    "Generated",
    "Generation",
    "ScoredStep",
    "Sees",
    "StreamingWindow",
    "Tool",
    "Toolbox",
    "Verified",
    "choice",
    "ends",
    "greedy",
    "inferlet",
    "json_schema",
    "lark",
    "mcp_tools",
    "regex",
    "steps",
    "temperature",
    "verify",
]
