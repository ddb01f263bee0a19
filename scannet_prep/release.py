"""Where the ScanNet release is (as of 2026)."""

BASE_URL = "https://kaldir.vc.cit.tum.de/scannet/"
TERMS_URL = BASE_URL + "ScanNet_TOS.pdf"
