/** Contains the ranks of a process: their threads, their groups, and what each knows of itself. */
@NullMarked
package io.djltp.rank;

import org.jspecify.annotations.NullMarked;
