# Become a container: `sh container_boot.sh ROOT BINDS OPTIONS COMMAND...`, as the first process of new mount and pid namespaces.
#
# ROOT (an empty directory) becomes the root file system: of the machine it has only programs and libraries, read-only, and what BINDS (a file;
# a line is "source target ro|rw") says, each at its own place, as an engine's volumes are. OPTIONS: "read-only" for a root that nothing can be
# written to, "shm=SIZE" for the size of /dev/shm. There is no /etc/passwd.
set -eu
umask 022
root=$1 binds=$2 options=$3
shift 3

mount --make-rprivate /
mount -t tmpfs -o mode=0755 container "$root"
cd "$root"
mkdir -p usr proc dev tmp etc run
for place in bin sbin lib lib32 lib64 libx32; do
    if [ -L /$place ]; then
        ln -s "$(readlink /$place)" $place
    elif [ -d /$place ]; then
        mkdir $place
        mount --bind /$place $place
        mount -o remount,bind,ro $place
    fi
done
mount --bind /usr usr
mount -o remount,bind,ro usr
mount -t proc proc proc
chmod 1777 tmp
for device in null zero random urandom; do
    : >dev/$device
    mount --bind /dev/$device dev/$device
done
mkdir dev/shm
case $options in
*shm=*) size=${options##*shm=} && mount -t tmpfs -o "mode=1777,size=${size%% *}" shm dev/shm ;;
*) mount -t tmpfs -o mode=1777 shm dev/shm ;;
esac
while read -r source target how; do
    mkdir -p ".$target"
    mount --bind "$source" ".$target"
    [ "$how" = rw ] || mount -o remount,bind,ro ".$target"
done <"$binds"
mkdir .old
pivot_root . .old # and not chroot, in which no process may make a user namespace
umount -l /.old
rmdir /.old
case $options in
*read-only*) mount -o remount,ro / ;;
esac
exec "$@"
