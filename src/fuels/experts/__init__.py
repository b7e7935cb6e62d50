"""Local experts, their online mixture and its intervals; nothing here is sent."""
