LC_ALL=C; export LC_ALL; a=${SSH_CONNECTION:-}; a=${a% *}; a=${a##* }; HVDCTL_LOGIN=$(id -u):$(id -g); export HVDCTL_LOGIN
