"""The endpoint picker, which tells a gateway where each request goes."""
