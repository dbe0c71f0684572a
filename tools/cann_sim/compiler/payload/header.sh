#!/bin/sh
# @TITLE@ @NAME@ -- SIMULATED CANN @VERSION@
# A self-extracting archive: this header, a checksum block, and a compressed tar.
umask 027
name="@NAME@"
title="@TITLE@"
takes_install_path="@INSTALL_PATH@"
skip=@SKIP@
self=$0
quiet=n
verb=install
noexec=n
keep=n
target=
root=

say() { [ "$quiet" = y ] || printf '%s\n' "$*"; }

usage() {
    cat <<EOH
$title $name (simulated CANN @VERSION@)
Usage: $(basename "$self") [options] [-- arguments of the installer]
  --help | -h           print this message
  --info                print what this package is
  --list                print the list of files in the archive
  --check               check the integrity of the archive
  -q | --quiet          print nothing unless something is wrong
  --noexec              do not run the installer
  --keep                keep the extracted files
  --target <dir>        extract to this directory
  --nox11               accepted, without effect
EOH
    [ "$takes_install_path" = no ] || echo "  --install-path=<root> install into <root>/static_kernel instead of the default op root"
}

payload() { tail -n +$((skip + 1)) "$self"; }
checksum_line() { sed -n "${skip}{s/^# SHA256 //p;q}" "$self"; }

check() {
    [ "${SETUP_NOCHECK:-0}" = 1 ] && return 0
    [ "$quiet" = y ] || printf 'Verifying archive integrity... '
    expected=$(checksum_line | cut -d ' ' -f 1)
    actual=$(payload | sha256sum | cut -d ' ' -f 1)
    if [ "$expected" != "$actual" ]; then
        [ "$quiet" = y ] || echo
        echo "Error in SHA256 checksums: $actual is different from $expected" >&2
        exit 2
    fi
    say ' 100%   SHA256 checksums are OK. All good.'
}

while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --info) echo "Identification: $title $name"; echo "Simulated: yes, CANN @VERSION@"; checksum_line; exit 0 ;;
        --list) verb=list ;;
        --check) verb=check ;;
        -q | --quiet) quiet=y ;;
        --noexec) noexec=y ;;
        --keep) keep=y ;;
        --nox11 | --accept | --confirm) ;;
        --target)
            [ $# -ge 2 ] || { echo "--target needs a directory" >&2; exit 1; }
            target=$2; keep=y; shift ;;
        --install-path=*)
            if [ "$takes_install_path" = no ]; then
                echo "Unrecognized flag : $1" >&2; usage >&2; exit 1
            fi
            root=${1#--install-path=}
            [ -n "$root" ] || { echo "--install-path needs a directory" >&2; exit 1; } ;;
        --) shift; break ;;
        *) echo "Unrecognized flag : $1" >&2; usage >&2; exit 1 ;;
    esac
    shift
done

if [ "$verb" = list ]; then
    payload | gzip -cd | tar tvf -
    exit $?
fi
check
[ "$verb" = check ] && exit 0

if [ -n "$target" ]; then
    mkdir -p "$target" || exit 1
    where=$target
else
    where=$(mktemp -d "${TMPDIR:-/tmp}/selfgz$$.XXXXXX") || { echo "Cannot create a directory in ${TMPDIR:-/tmp}" >&2; exit 1; }
fi
if [ "$keep" = n ]; then
    trap 'rm -rf "$where"' EXIT
    trap 'exit 15' HUP INT TERM
fi
[ "$quiet" = y ] || printf '%s' "Uncompressing $title "
payload | gzip -cd | (cd "$where" && tar xpf - --no-same-owner) || { echo "Extraction failed" >&2; exit 1; }
say ' 100%'
[ "$noexec" = y ] && exit 0

if [ -z "$root" ]; then
    if [ -n "${ASCEND_HOME_PATH:-}" ] && [ -d "$ASCEND_HOME_PATH/opp_latest" ]; then
        root=$ASCEND_HOME_PATH/opp_latest
    elif [ -n "${ASCEND_OPP_PATH:-}" ]; then
        root=$ASCEND_OPP_PATH
    else
        echo "[ERROR] no CANN environment: source set_env.sh first" >&2
        exit 1
    fi
fi
if [ "$quiet" = y ]; then
    "$where/$name/scripts/install.sh" "$root" "$@" >/dev/null
else
    "$where/$name/scripts/install.sh" "$root" "$@"
fi
exit $?
# SHA256 @SHA256@ @SIZE@
