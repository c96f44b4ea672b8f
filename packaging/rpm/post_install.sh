# The user, the directories, and the units; as the Debian package does.
systemd-sysusers toklat.conf || :
systemd-tmpfiles --create toklat.conf || :
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
fi
if [ "$1" -eq 1 ]; then
    systemctl preset toklat.service toklat.socket toklat-control.socket || :
elif [ -d /run/systemd/system ] && systemctl --quiet is-active toklat.service; then
    # The data processes of the version before run on, and are replaced without losing a frame.
    systemctl restart toklat.service || :
    toklat --dir /run/toklat upgrade || :
fi
# Container runtimes call the same program by this name. cargo-generate-rpm packs no links.
mkdir -p /usr/libexec/cni
ln -sf ../../bin/toklat /usr/libexec/cni/toklat-cni
