//! The control plane: the command line, the API, the supervisor and its quotas, the documents.

mod cli_alone;
mod cli_apply;
mod cli_completion;
mod cli_daemon;
mod cli_sim;
mod cli_why;
mod cli_wrong;
mod daemon_api;
mod daemon_children;
mod daemon_events;
mod daemon_full_disk;
mod daemon_fuzz;
mod daemon_log;
mod daemon_quotas;
mod daemon_schema;
mod daemon_soak;
mod daemon_strangers;
mod daemon_survival;
mod daemon_tcp;
mod daemon_users;
mod daemon_view;
mod daemon_walls;
mod docs;
mod snapshots;
