"""What is in a raw or a processed tree, or in archives: `plan`, then `run`."""

from scannet_prep.stages.inventory.places import Inventory, InventoryPlan, plan, run

__all__ = ["Inventory", "InventoryPlan", "plan", "run"]
