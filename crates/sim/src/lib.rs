//! A network that repeats itself: the switch, its links and rules, and the TCP/IP stack of live
//! traffic, in virtual time and in one thread.
//!
//! ```
//! use std::time::Duration;
//! use sim::{Fault, Place, World};
//!
//! let mut world = World::new(7);
//! let lan = world.switch("vale0");
//! let server = world.tasks(lan, Place::new("server", "10.0.0.1/24")?, |net| async move {
//!     let listener = net.listen(7, 16).expect("port 7 is free");
//!     let stream = listener.accept().await;
//!     let mut buffer = [0; 64];
//!     while let Ok(n @ 1..) = stream.read(&mut buffer).await {
//!         let _ = stream.write_all(&buffer[..n]).await;
//!     }
//! })?;
//! let client = world.tasks(lan, Place::new("client", "10.0.0.2/24")?, |net| async move {
//!     let to: std::net::SocketAddr = "10.0.0.1:7".parse().expect("an address");
//!     let stream = net.connect(to).await.expect("the server listens");
//!     stream.write_all(b"hello").await.expect("it is connected");
//!     let mut buffer = [0; 5];
//!     let mut came = 0;
//!     while came < 5 {
//!         came += stream.read(&mut buffer[came..]).await.expect("it answers");
//!     }
//! })?;
//! // The client is cut off for two seconds, as soon as its 4th frame was sent.
//! world.on_frame(4, Fault::Cut(client.id()));
//! world.at(Duration::from_secs(2), Fault::Join(client.id()));
//! world.run_until(Duration::from_secs(60), |_| client.has_ended())?;
//! assert!(world.now() > Duration::from_secs(2));
//! # drop(server);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - **Same seed, same frames, same times.** Everything that is drawn comes from the world's seed,
//!   by name, so that a new host does not change what others draw. [`World::hash`] is over each
//!   frame that a host sent or received: time, host, direction, bytes.
//! - **Idle time is free.** The clock steps to the next moment at which a host, a link or a fault
//!   has something to do.
//! - **A turn takes [`TURN`]**: hosts run, then the switch forwards what they have sent; it arrives
//!   in the next turn.
//! - **A failed test leaves what is needed to understand it**: a world that is dropped by a panic
//!   prints its seed and its last frames, and writes all that it has kept as pcapng.
//! - **A host may not ask for the time or for chance elsewhere.** Code that reads a clock does not
//!   repeat; [`same`] runs a world twice and names the first frame that differs.
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod chance;
mod host;
mod net;
mod nic;
mod sweep;
mod trace;
mod world;

pub use chance::Chance;
pub use host::{Host, Machine, Place, Tasks};
pub use net::NetError;
pub use nic::SimNic;
pub use sweep::{Trial, same, sweep};
pub use trace::{Direction, HostId, Seen};
pub use world::{Fault, SimError, SwitchId, TURN, World};
