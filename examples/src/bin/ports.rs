//! Lists the ports of all switches, as a program of your own asks the daemon: by the control API.

use client::{Client, Global};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The daemon of $TOKLAT_DIR, else of the usual place, as for the command line.
    let mut daemon = Client::connect(&Global::default())?;
    let switches: Vec<api::SwitchInfo> = daemon.get("/v1/switches")?;
    for switch in switches {
        // Replies are the types of the crate `api`; /openapi.json describes them, too.
        let path = format!("/v1/switches/{}/ports", switch.name);
        let ports: Vec<api::PortInfo> = daemon.get(&path)?;
        for port in ports {
            println!("{}:{} is {}, {}", switch.name, port.name, port.spec.kind, port.state.name());
        }
    }
    Ok(())
}
