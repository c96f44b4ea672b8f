//! The Debian package's scripts: in those of `packaging/debian`, `#DEBHELPER#` stands for what
//! debhelper 13 adds for users, directories and units.

use super::files::Item;

/// The users, then the directories, which are theirs.
const USERS: &str = r#"if [ "$1" = "configure" ] || [ "$1" = "abort-upgrade" ] || [ "$1" = "abort-deconfigure" ] || [ "$1" = "abort-remove" ] ; then
	systemd-sysusers ${DPKG_ROOT:+--root="$DPKG_ROOT"} @FILE@
fi"#;
const DIRECTORIES: &str = r#"if [ "$1" = "configure" ] || [ "$1" = "abort-upgrade" ] || [ "$1" = "abort-deconfigure" ] || [ "$1" = "abort-remove" ] ; then
	# In case this system is running systemd, we need to ensure that all
	# necessary tmpfiles (if any) are created before starting.
	if [ -d /run/systemd/system ] ; then
		systemd-tmpfiles --create @FILE@ >/dev/null || true
	fi
fi"#;
const ENABLE: &str = r#"if [ "$1" = "configure" ] || [ "$1" = "abort-upgrade" ] || [ "$1" = "abort-deconfigure" ] || [ "$1" = "abort-remove" ] ; then
	# This will only remove masks created by d-s-h on package removal.
	deb-systemd-helper unmask @UNIT@ >/dev/null || true

	# was-enabled defaults to true, so new installations run enable.
	if deb-systemd-helper --quiet was-enabled @UNIT@; then
		# Enables the unit on first installation, creates new
		# symlinks on upgrades if the unit file has changed.
		deb-systemd-helper enable @UNIT@ >/dev/null || true
	else
		# Update the statefile to add new symlinks (if any), which need to be
		# cleaned up on purge. Also remove old symlinks.
		deb-systemd-helper update-state @UNIT@ >/dev/null || true
	fi
fi"#;
/// After an upgrade the units restart; they run on until then.
const START: &str = r#"if [ "$1" = "configure" ] || [ "$1" = "abort-upgrade" ] || [ "$1" = "abort-deconfigure" ] || [ "$1" = "abort-remove" ] ; then
	if [ -d /run/systemd/system ]; then
		systemctl --system daemon-reload >/dev/null || true
		if [ -n "$2" ]; then
			_dh_action=restart
		else
			_dh_action=start
		fi
		deb-systemd-invoke $_dh_action @UNITS@ >/dev/null || true
	fi
fi"#;
const STOP: &str = r#"if [ -d /run/systemd/system ] && [ "$1" = remove ]; then
	deb-systemd-invoke stop @UNITS@ >/dev/null || true
fi"#;
const RELOAD: &str = r#"if [ -d /run/systemd/system ]; then
	systemctl --system daemon-reload >/dev/null || true
fi"#;
const FORGET: &str = r#"if [ "$1" = "remove" ]; then
	if [ -x "/usr/bin/deb-systemd-helper" ]; then
		deb-systemd-helper mask @UNITS@ >/dev/null || true
	fi
fi

if [ "$1" = "purge" ]; then
	if [ -x "/usr/bin/deb-systemd-helper" ]; then
		deb-systemd-helper purge @UNITS@ >/dev/null || true
		deb-systemd-helper unmask @UNITS@ >/dev/null || true
	fi
fi"#;

/// The names of the files that go to a directory, sorted.
fn files_in(items: &[Item], directory: &str) -> Vec<String> {
    let there =
        items.iter().filter(|item| item.to.parent().is_some_and(|at| at.ends_with(directory)));
    let names = there.filter_map(|item| Some(item.to.file_name()?.to_string_lossy().into_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Returns a script with what debhelper adds to the one of this name.
pub fn fill(name: &str, script: &str, items: &[Item]) -> String {
    let units = files_in(items, "systemd/system");
    let each = |files: &[String], what: &'static str| -> Vec<String> {
        files.iter().map(|file| what.replace("@FILE@", file).replace("@UNIT@", file)).collect()
    };
    let all = |what: &str| what.replace("@UNITS@", &units.join(" "));
    let added = match name {
        "postinst" => {
            let mut added = each(&files_in(items, "lib/sysusers.d"), USERS);
            added.extend(each(&files_in(items, "lib/tmpfiles.d"), DIRECTORIES));
            added.extend(each(&units, ENABLE));
            added.push(all(START));
            added
        }
        "prerm" => vec![all(STOP)],
        "postrm" => vec![RELOAD.to_owned(), all(FORGET)],
        _ => Vec::new(),
    };
    let marked = added.iter().map(|text| {
        format!(
            "# Automatically added by cargo xtask deb\n{text}\n# End automatically added section\n"
        )
    });
    script.replace("#DEBHELPER#\n", &marked.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::super::files::{From, Kind};
    use super::*;

    fn item(to: &str) -> Item {
        let from = From::File(to.into());
        Item { from, to: to.into(), mode: 0o644, kind: Kind::File, is_built: false }
    }

    #[test]
    fn scripts_have_users_before_units_and_stop_none_on_an_upgrade() {
        let places = ["systemd/system/b.socket", "systemd/system/a.service", "sysusers.d/a.conf"];
        let items = places.map(|place| item(&format!("usr/lib/{place}")));
        let script = "before\n#DEBHELPER#\nafter\n";
        let added = fill("postinst", script, &items);
        let at = |what: &str| added.find(what).unwrap_or_else(|| panic!("{what}: {added}"));
        assert!(at("before") < at("systemd-sysusers ${DPKG_ROOT:+--root=\"$DPKG_ROOT\"} a.conf"));
        assert!(at(" a.conf") < at("deb-systemd-helper enable a.service"));
        assert!(at("enable b.socket") < at("deb-systemd-invoke $_dh_action a.service b.socket"));
        assert!(at("$_dh_action a") < at("after") && !added.contains('@'), "{added}");
        assert!(fill("prerm", script, &items).contains(r#"[ "$1" = remove ]; then"#));
        assert!(fill("postrm", script, &items).contains("purge a.service b.socket >"));
        assert_eq!(fill("preinst", script, &items), "before\nafter\n");
    }
}
