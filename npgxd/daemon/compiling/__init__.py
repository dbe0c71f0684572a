"""Workers: what the planner chooses is started within what the machine grants, watched, published slice by slice, and room is made for it."""
