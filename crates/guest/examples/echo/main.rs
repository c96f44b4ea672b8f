//! Echoes all data to port 7, by TCP and by UDP (RFC 862).
//!
//!     cargo run --release -p toklat-guest --example echo vale0:echo 10.0.0.3/24

use guest::Host;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    Ok(Host::from_env()?.run(guest::apps::echo::serve)?)
}
