"""Programs beside the service: conversion, replay checker, local stack."""
