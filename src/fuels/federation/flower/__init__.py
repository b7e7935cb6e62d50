"""A federation across machines, carried by Flower.

On disk      parties (folders and config files), found (makes them), keys
On the way   letters (messages as envelopes), records (envelopes in Flower's messages)
At a site    app_client (the ClientApp), clerk (stays, and answers for it), desk (reads, trains,
             answers), results
At the server  app_server (the ServerApp), serving (runs the loop), transport (deadline, quorum,
             late answers), post (what it needs of Flower), members (who has which clients),
             declaration (what must be alike at all sites)
Processes    commands (Flower's own), launch, door (what the network sees of the server), steward
             (takes up a cut-off run), lifeline, follow, state, demo

Flower itself is imported by app_server, app_client and records alone.
"""
