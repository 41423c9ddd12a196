# Behind ship_common.sh. Brings what ended runs wrote in folders of their own into the project's.
[ ! -d "$name" ] || gather
