"""The tools of an MCP server (Model Context Protocol) as the tools of an environment."""
