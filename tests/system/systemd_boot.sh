# Boot a systemd of our own: `sh systemd_boot.sh DIRECTORY TREE...`, as the first process of new pid, mount, cgroup, uts, ipc and net namespaces.
#
# Nothing that runs in it can change the machine: every file system is private and read-only, but for tmpfs on /run, /tmp, /var/tmp,
# /var/log and /dev, and DIRECTORY's etc, var-lib and srv on /etc, /var/lib and /srv. TREEs (the repository, the virtual environment, its
# Python) can be read there at their own paths by every user, also where a directory above them is closed to others.
set -eu
umask 022
directory=$1
shift

mount --make-rprivate /

# Keep hold of what the mounts below hide.
hold=/mnt
mount -t tmpfs -o mode=0755 hold $hold
mkdir $hold/test $hold/dev
mount --bind "$directory" $hold/test
mount --bind /dev $hold/dev
count=0
for tree; do
    count=$((count + 1))
    mkdir $hold/$count
    mount --bind "$tree" $hold/$count
done

umount -R /sys/fs/cgroup
findmnt -rn -o TARGET | while read -r point; do
    case $point in
    /proc* | /dev* | $hold | $hold/[0-9dt]*) ;;
    *) mount -o remount,bind,ro "$point" 2>/dev/null || [ "$point" != / ] ;; # others may lie hidden below a later mount
    esac
done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for setting in /proc/sys /proc/sysrq-trigger; do
    if [ -e $setting ]; then
        mount --bind $setting $setting
        mount -o remount,bind,ro $setting
    fi
done

# systemd's clean-up at boot empties /tmp: it must never be the machine's.
mount -t tmpfs -o mode=0755 run /run
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs -o mode=1777 tmp /var/tmp
mount -t tmpfs -o mode=0755 log /var/log
mount --bind $hold/test/etc /etc
mount --bind $hold/test/var-lib /var/lib
mount --bind $hold/test/srv /srv

mount -t tmpfs -o mode=0755 dev /dev
for device in null zero full random urandom tty; do
    : >/dev/$device
    mount --bind $hold/dev/$device /dev/$device
done
mkdir /dev/shm /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts /dev/pts
ln -s pts/ptmx /dev/ptmx
ln -s /proc/self/fd /dev/fd

# Where a directory above a tree is closed (a Python of pyenv below /root), an open one with nothing but the tree takes its place.
count=0
for tree; do
    count=$((count + 1))
    above=
    rest=${tree#/}
    while [ "$rest" != "${rest#*/}" ]; do
        above=$above/${rest%%/*}
        rest=${rest#*/}
        case $(stat -c %A "$above" 2>/dev/null) in
        *x | *t | "") ;;
        *)
            mount -t tmpfs -o mode=0755 opened "$above"
            break
            ;;
        esac
    done
    if ! [ -d "$tree" ]; then
        mkdir -p "$tree"
    fi
    mount --bind -o ro $hold/$count "$tree"
    mount -o remount,bind,ro "$tree"
done
umount -l $hold

# Units that have no business in a test: they would load modules into the machine's kernel, or do its daily chores.
mkdir -p /run/systemd/system
for unit in systemd-modules-load.service modprobe@.service timers.target systemd-random-seed.service dbus.socket; do
    ln -s /dev/null /run/systemd/system/$unit
done

exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=lxc \
    setpriv --bounding-set=-sys_module,-sys_time,-sys_rawio,-sys_boot,-syslog,-mac_admin,-audit_control /lib/systemd/systemd --system --unit=basic.target
