"""The theory of online linear programs, observed: packing instances, regret, knapsacks, convergence."""
