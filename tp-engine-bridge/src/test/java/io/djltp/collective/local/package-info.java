/** Tests of ranks that share memory. */
package io.djltp.collective.local;
