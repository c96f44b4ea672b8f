//! iperf3, server or client, for the real one at the other end.
//!
//!     cargo run --release -p toklat-guest --example iperf3 vale0:perf 10.0.0.5/24
//!     cargo run --release -p toklat-guest --example iperf3 vale0:perf 10.0.0.5/24 10.0.0.1 -t 5 -R

use std::error::Error;

use guest::Host;
use guest::apps::iperf3;

fn main() -> Result<(), Box<dyn Error>> {
    let host = Host::from_env()?;
    let command = iperf3::Command::read(host.args())?;
    Ok(host.run(|stack| command.run(stack, || 0.0))?)
}
