//! A container's network namespace, in which `ip` (iproute2) configures its interface.

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
    /// Opens the namespace at this path.
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

    /// Runs `ip` in the namespace; returns its output.
    pub fn ip(&self, args: &[&str]) -> Result<Vec<u8>, Failure> {
        let failed = |details: String| {
            let what = format!("ip {} failed in {}", args.join(" "), self.path);
            Failure::new(Code::Namespace, what, details)
        };
        // The thread stays in the namespace, so it ends here. Its child starts in the namespace.
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

    /// Returns true if the namespace has an interface of this name.
    pub fn has(&self, ifname: &str) -> Result<bool, Failure> {
        let links: Value =
            serde_json::from_slice(&self.ip(&["-j", "link", "show"])?).unwrap_or_default();
        let links = links.as_array().into_iter().flatten();
        Ok(links.into_iter().any(|link| link["ifname"] == ifname))
    }

    /// The interface's state: `ip -j addr show`.
    pub fn interface(&self, ifname: &str) -> Result<Value, Failure> {
        let text = self.ip(&["-j", "addr", "show", "dev", ifname])?;
        let mut list: Value = serde_json::from_slice(&text).unwrap_or_default();
        Ok(list[0].take())
    }

    /// Sets the interface's MAC address, and the IPAM plugin's addresses and routes.
    pub fn configure(&self, ifname: &str, mac: Mac, addresses: &Value) -> Result<(), Failure> {
        self.ip(&["link", "set", "dev", ifname, "address", &mac.to_string()])?;
        let list = |field: &str| addresses[field].as_array().into_iter().flatten();
        for ip in list("ips") {
            let address = text(ip, "address")?;
            // Skips duplicate address detection: the plugin has assigned the address.
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
