"""Jobs on other machines: what they leave behind, and a stage that is divided into shards."""
