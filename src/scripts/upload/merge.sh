# Follows upload/common.sh. One more argument: the id of a job that has ended. Merges its separate directory into the project's.
id=$4
is_it() { [ "$1" = "$id" ]; }
[ ! -d "$name" ] || merge is_it
