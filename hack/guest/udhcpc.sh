#!/bin/sh
# What udhcpc calls with a lease. shellcheck cannot know: interface, ip, mask, router and dns come from udhcpc.
# shellcheck disable=SC2154
PATH=/bin:/sbin
case $1 in
bound | renew)
  ip addr replace "$ip/${mask:-24}" dev "$interface"
  for address in $router; do ip route replace default via "$address" dev "$interface"; done
  for address in $dns; do echo "nameserver $address"; done >/etc/resolv.conf
  echo "gitvirt-guest: address $interface $ip/${mask:-24}" >/dev/console
  ;;
esac
