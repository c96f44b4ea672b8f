# Before anything is replaced, as packaging/debian/preinst.
oldest=7
newest=8
run="${TOKLAT_DIR:-/run/toklat}"
if [ "$1" -gt 1 ] && [ -S "$run/control.sock" ]; then
    version=$(toklat control-version 2>/dev/null) || version=unknown
    case "$version" in
        *[!0-9]* | '') carried=no ;;
        *) [ "$version" -ge "$oldest" ] && [ "$version" -le "$newest" ] && carried=yes || carried=no ;;
    esac
    if [ "$carried" = no ]; then
        echo "toklat: version $version of the control messages runs, and this package takes over $oldest to $newest:" >&2
        echo "toklat: ALL PORTS CLOSE when the daemon is restarted; clients and virtual machines open them anew." >&2
    else
        echo "toklat: ports stay open; netmap programs (toklat run) see ENXIO and open theirs anew." >&2
    fi
fi
