"""Replays a history of etcd and holds calls, sidecar logs and engine listings against it: does every promise hold?"""
