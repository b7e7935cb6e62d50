"""Local and shared experts, their online mixture and its intervals."""
