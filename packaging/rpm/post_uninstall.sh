# The directories that are toklat's alone: cargo-generate-rpm packs files.
if [ "$1" -eq 0 ]; then
    rmdir --ignore-fail-on-non-empty /usr/share/doc/toklat/examples /usr/share/doc/toklat \
        /usr/share/licenses/toklat /usr/lib/toklat /etc/toklat 2>/dev/null || :
fi
