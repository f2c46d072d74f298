/** Contains the ranks of a process: their threads, contexts and groups. */
@NullMarked
package io.djltp.internal.rank;

import org.jspecify.annotations.NullMarked;
