"""Tools of MCP servers: an episode's own servers, its sessions with them, and what they return. No tasks here."""
