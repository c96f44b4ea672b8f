//! A container's network namespace, in which `ip` (iproute2) sets its interface up.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

use frame::Mac;
use rustix::thread::LinkNameSpaceType;
use serde_json::Value;

use super::{Code, Failure};

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    path: String,
    file: File,
}

impl Namespace {
    /// Opens the one of this path.
    pub fn open(path: &str) -> Result<Self, Failure> {
        let file = File::open(path).map_err(|e| {
            Failure::new(
                Code::Io,
                format!("Cannot open the network namespace {path}"),
                e.to_string(),
            )
        })?;
        Ok(Self { path: path.into(), file })
    }

    /// Runs `ip` in it; what it printed.
    pub fn ip(&self, args: &[&str]) -> Result<Vec<u8>, Failure> {
        let failed = |details: String| {
            let what = format!("ip {} failed in {}", args.join(" "), self.path);
            Failure::new(Code::Namespace, what, details)
        };
        // The thread stays in the namespace, so it ends here; what it starts begins there.
        let run = || {
            let kind = Some(LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(self.file.as_fd(), kind)
                .map_err(|e| failed(format!("Cannot enter it: {e}; is the plugin run as root?")))?;
            Command::new("ip")
                .args(args)
                .output()
                .map_err(|e| failed(format!("{e}; install iproute2")))
        };
        let done = std::thread::scope(|scope| scope.spawn(run).join());
        let output = done.unwrap_or_else(|_| Err(failed("a thread panicked".into())))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }

    /// True if it has an interface of this name.
    pub fn has(&self, ifname: &str) -> Result<bool, Failure> {
        let links: Value =
            serde_json::from_slice(&self.ip(&["-j", "link", "show"])?).unwrap_or_default();
        let links = links.as_array().into_iter().flatten();
        Ok(links.into_iter().any(|link| link["ifname"] == ifname))
    }

    /// The interface as it is: `ip -j addr show`.
    pub fn interface(&self, ifname: &str) -> Result<Value, Failure> {
        let text = self.ip(&["-j", "addr", "show", "dev", ifname])?;
        let mut list: Value = serde_json::from_slice(&text).unwrap_or_default();
        Ok(list[0].take())
    }

    /// Gives the interface its address, and what an IPAM plugin said.
    pub fn configure(&self, ifname: &str, mac: Mac, addresses: &Value) -> Result<(), Failure> {
        self.ip(&["link", "set", "dev", ifname, "address", &mac.to_string()])?;
        let list = |field: &str| addresses[field].as_array().into_iter().flatten();
        for ip in list("ips") {
            let address = text(ip, "address")?;
            // Without waiting for the address to be found to be nobody else's: the plugin gave it.
            let nodad: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
            self.ip(&[&["addr", "add", address, "dev", ifname], nodad].concat())?;
        }
        self.ip(&["link", "set", "dev", ifname, "up"])?;
        for route in list("routes") {
            let destination = text(route, "dst")?;
            let v6 = destination.contains(':');
            let of_family = |ip: &&Value| {
                ip["gateway"].as_str().is_some_and(|gateway| gateway.contains(':') == v6)
            };
            let gateway = route["gw"].as_str();
            let gateway = gateway.or_else(|| list("ips").find(of_family)?["gateway"].as_str());
            let via = gateway.map_or_else(Vec::new, |gateway| vec!["via", gateway]);
            let family = if v6 { "-6" } else { "-4" };
            self.ip(&[
                &[family, "route", "replace", destination],
                via.as_slice(),
                &["dev", ifname],
            ]
            .concat())?;
        }
        Ok(())
    }
}

fn text<'a>(of: &'a Value, field: &str) -> Result<&'a str, Failure> {
    of[field].as_str().ok_or_else(|| {
        Failure::new(
            Code::Decode,
            format!("The IPAM plugin's answer has no {field:?}"),
            of.to_string(),
        )
    })
}
