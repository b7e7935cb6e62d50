"""A federation across machines, carried by Flower.

parties    the folders and config files of server and sites
keys       certificates and keys
commands   Flower's own commands, as this package calls them
transport  the round loop's transport: deadline, quorum, late replies
desk       a site's side: opens its folder, trains, answers
serving    the server's side: opens its folder, runs the loop
app        the Flower app that both sides run
steward    stands by the SuperLink: registers keys, takes up an unfinished run

Only `app_server`, `app_client` and what they alone import need Flower itself.
"""
