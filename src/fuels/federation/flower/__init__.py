"""A federation across machines, carried by Flower.

Folders       folders (of a server and a site, with their config files), provisioning (creates and
              renews them), pki (keys and certificates)
Messages      messages (requests and replies, what a method declares to send), app (the ClientApp
              and the ServerApp that exchange them)
At the server server (runs the rounds), transport (deadline, quorum, late replies), inbox (sends
              requests, checks replies), members (which site has which clients), exclusion (who
              takes no further part)
At a site     dispatcher (takes messages to the worker), worker (trains), outbox (the last check)
Processes     processes (starts those of a server or a site), gateway (the public port of a server,
              with site_keys and access), supervisor (registers keys, resumes an interrupted run),
              launcher (starts the ServerApp), child_process (none outlives its
              parent)
Operation     commands (Flower's own), flower_app (the app that is submitted and its run config),
              runs (submits and stops), status (follows), database (Flower's), records (audit log,
              figures), metrics, demo

Processes of a server: the SuperLink, the gateway, the supervisor and, during a run, the ServerApp.
Processes of a site: its own, which serves the SuperNode, the SuperNode, and the worker.
"""
