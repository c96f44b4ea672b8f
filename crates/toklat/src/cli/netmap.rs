//! `toklat netmap`: the ports that netmap programs made to stay.

use clap::{Args, Subcommand};
use client::table::Table;
use client::{Client, Global, Result};
use serde_json::json;

use crate::api::NetmapPort;
use crate::users;

/// What can be done with persistent ports.
#[derive(Debug, Subcommand)]
pub enum NetmapCommand {
    /// Show the ports of all users, and the switches that they are in
    Show,
    /// Remove a port of a user, also from its switches. No program may have it open
    Rm(RmArgs),
}

/// Options of `toklat netmap rm`.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// Whose port it is, by name or uid
    #[arg(long, value_parser = users::uid)]
    user: u32,
    /// The port's name
    port: String,
}

impl NetmapCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// If the daemon does not run or refuses.
    pub fn run(self, global: &Global) -> Result {
        let mut client = Client::connect(global)?;
        match self {
            Self::Show => {
                let ports: Vec<NetmapPort> = client.get("/v1/netmap/ports")?;
                global.print_list(
                    &ports,
                    || table(&ports),
                    "no persistent ports of netmap programs",
                )
            }
            Self::Rm(RmArgs { user, port }) => {
                let path = format!("/v1/netmap/ports/{user}/{}", escaped(&port));
                client.delete(&path)?;
                let whose = users::name(user);
                let removed = json!({ "uid": user, "name": port });
                global.print_done(&removed, &format!("removed port {port} of user {whose}"))
            }
        }
    }
}

/// A name in a path. Programs may choose any characters.
fn escaped(name: &str) -> String {
    let escape = |byte: u8| match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' | b'_' => char::from(byte).into(),
        _ => format!("%{byte:02X}"),
    };
    name.bytes().map(escape).collect()
}

fn table(ports: &[NetmapPort]) -> Table {
    let mut table = Table::new(&["user", "port", "switches", "open"]);
    for port in ports {
        let switches = if port.switches.is_empty() { "-".into() } else { port.switches.join(" ") };
        let open = if port.open { "yes" } else { "no" };
        table.row([users::name(port.uid), port.name.clone(), switches, open.into()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_characters_are_one_part_of_a_path() {
        assert_eq!(escaped("vi0-a_b.c"), "vi0-a_b.c");
        assert_eq!(escaped("a b?%\u{e9}"), "a%20b%3F%25%C3%A9");
    }
}
