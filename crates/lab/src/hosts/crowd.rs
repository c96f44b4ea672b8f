//! Many hosts with many stations each, simulated at the API of a route reflector.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use evpn::client::Client;
use evpn::route::{Key, Mobility, OwnRoute, RouteTarget, distinguisher};
use frame::Mac;

/// The segment of all stations, as of [topologies' lines](super::lines::evpn).
pub const VNI: u32 = 100;

/// Simulated hosts 10.98.0.1 and on. Station `n` appears at host `n % hosts`, and goes to the next
/// one at each of its moves.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// The number of hosts.
    pub hosts: u32,
    /// How many stations all have together.
    pub stations: u32,
}

/// The address of a station.
#[must_use]
pub fn station(n: u32) -> Mac {
    Mac::local(0x1_0000 + n)
}

/// Runs a task on a runtime of its own.
///
/// # Errors
/// The task's error, or there can be no runtime.
pub fn block_on<T>(task: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(task)
}

impl Crowd {
    /// Tells the reflector, whose API is at `socket`, of all stations at once.
    ///
    /// # Errors
    /// It does not take them.
    pub fn appear(&self, socket: &Path) -> Result<()> {
        let routes: Vec<_> = (0..self.stations).map(|n| self.route(n, 0)).collect();
        block_on(async { Ok(Client::connect(socket).await?.advertise(&routes).await?) })
    }

    /// Has `each` stations a second move for `seconds`, in turn. Returns how long that took.
    ///
    /// # Errors
    /// The reflector does not take the routes.
    pub fn move_on(&self, socket: &Path, (each, seconds): (u32, u32)) -> Result<Duration> {
        let begun = Instant::now();
        block_on(async {
            let mut client = Client::connect(socket).await?;
            for second in 0..seconds {
                let moves = (second * each..(second + 1) * each)
                    .map(|all| (all % self.stations, all / self.stations));
                let new: Vec<_> =
                    moves.clone().map(|(n, times)| self.route(n, times + 1)).collect();
                client.advertise(&new).await?;
                let old: Vec<_> = moves.map(|(n, times)| self.route(n, times)).collect();
                client.withdraw(&old).await?;
                let next = Duration::from_secs(u64::from(second) + 1);
                tokio::time::sleep(next.saturating_sub(begun.elapsed())).await;
            }
            Ok(())
        })?;
        Ok(begun.elapsed())
    }

    /// How many stations are not at their new place after this many moves, by the answer of
    /// `/v1/evpn/macs`.
    #[must_use]
    pub fn lost(&self, macs: &serde_json::Value, moves: u32) -> usize {
        let known = macs.as_array().into_iter().flatten();
        let known: HashMap<&str, &str> = known
            .filter_map(|info| Some((info["mac"].as_str()?, info["host"].as_str()?)))
            .collect();
        let is_there = |n: &u32| {
            let times = moves / self.stations + u32::from(*n < moves % self.stations);
            let host = self.host(*n, times).to_string();
            known.get(station(*n).to_string().as_str()) == Some(&host.as_str())
        };
        (0..self.stations).filter(|n| !is_there(n)).count()
    }

    /// The host of a station after this many moves.
    fn host(&self, n: u32, times: u32) -> Ipv4Addr {
        let first = u32::from(Ipv4Addr::new(10, 98, 0, 1));
        Ipv4Addr::from(first + (n % self.hosts + times) % self.hosts)
    }

    fn route(&self, n: u32, times: u32) -> OwnRoute {
        let host = self.host(n, times);
        let rd = distinguisher(host, VNI as u16);
        OwnRoute {
            key: Key::Mac { rd, tag: 0, mac: station(n), ip: None },
            vni: VNI,
            vtep: host.into(),
            targets: vec![RouteTarget::auto(65000, VNI)],
            mobility: Mobility { sticky: false, sequence: times },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_station_that_is_not_where_it_went_last_is_lost() {
        let crowd = Crowd { hosts: 3, stations: 4 };
        // The first two have moved twice, the others once.
        let at = [2, 0, 0, 1].map(|host| Ipv4Addr::new(10, 98, 0, host + 1).to_string());
        let infos = at
            .iter()
            .zip(0..)
            .map(|(host, n)| serde_json::json!({ "mac": station(n).to_string(), "host": host }));
        let mut macs = serde_json::Value::from(infos.collect::<Vec<_>>());
        assert_eq!(crowd.lost(&macs, 6), 0);
        assert_eq!(crowd.lost(&macs, 7), 1, "the third has moved again");
        macs[3]["host"] = "10.98.0.1".into();
        assert_eq!(crowd.lost(&macs, 6), 1);
    }
}
