/** Contains figures of the machine. */
package io.djltp.internal.report;
