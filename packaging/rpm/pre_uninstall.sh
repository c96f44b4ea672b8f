# The data processes outlive `systemctl stop` on purpose; when the package goes, they go too.
if [ "$1" -eq 0 ]; then
    [ ! -S /run/toklat/control.sock ] || toklat --dir /run/toklat stop || :
    systemctl --no-reload disable --now toklat.service toklat.socket toklat-control.socket || :
    rm -f /usr/libexec/cni/toklat-cni
    rmdir --ignore-fail-on-non-empty /usr/libexec/cni || :
fi
