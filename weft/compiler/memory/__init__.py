"""Memory: when each step of a plan runs, and where in memory its values are stored.

Steps are scheduled, values are computed in place where that is safe, and the rest share one arena by lifetime. This
package sees regions, sizes, and what each region reads and writes; it must not know kernel text or schedules.
"""
