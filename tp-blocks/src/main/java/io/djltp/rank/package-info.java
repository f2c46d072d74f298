/** Contains the ranks of a process: their threads, their groups, and what each knows of itself. */
package io.djltp.rank;
